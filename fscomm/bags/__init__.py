"""Pooled groups: one vector for each *bag*, the ids of one feature of one sample.

`bag_ids` numbers the bags between this rank and its peers; `bag_plan` says what travels where; where several owners
have parts of a vector, the parts are added up in `gloo_order`. `pooled_tables` read and update whole bags.
"""
