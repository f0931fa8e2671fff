"""What loops often do, in as few programs as that takes: words for `programs.play`."""

import functools

from exact import Loop
from programs import operations_of, play

USUAL = {
    "passes out of turn": """
        next_forward drop next next train_next train_twice:3
        next_forward next_forward backward_of_sum optimizer_step next_forward next_forward:4 backward:1 backward
        next_forward backward_kept backward_kept backward train_next:2
        rate:3 next_forward rate:5 zero_grad backward rate:7 optimizer_step train_next:3 train_next""",
    "gradients of several batches": """
        next_forward backward next_forward backward next_forward backward optimizer_step zero_grad
        next_forward next backward optimizer_step forward next backward optimizer_step zero_grad train_next""",
    "parts of the model, other batches": """
        train_next:4 train_next train_next:2 train_next:3 module backward module:1 backward train_next
        foreign backward train_next:1 foreign:3 backward train_next
        next_forward recomputed:1 backward_of_sum next_forward recomputed backward_of_sum saved_elsewhere backward
        train_next saved_elsewhere:4 backward train_next saved_elsewhere:9 backward train_next""",
    "states, loops and blocks": """
        train_next state train_next state:1 next_forward state:2 backward state:5 optimizer_step
        train_next evaluate evaluate:1 train_next flush:1 train_next flush train_next load train_next load:1 train_next
        new_loop train_on:1 next_forward backward next_forward leave train_next train_next:2 train_next""",
    "evaluation": """
        train_next inspect inspect:1 train_next inspect:2 train_next evaluate inspect:3 train_on:1""",
    "tables are read": """
        leave look train_next look:1 enter train_next next_forward look:2 backward look:3 optimizer_step look
        train_on:1 look:1 leave look:2 train_next look:3""",
    "tables are changed": """
        train_next change train_next change:1 train_next change:2 train_next change:3 train_next change:4
        train_next look new_loop train_on:1""",
    "tables are held by numpy": """
        train_next alias:7 use_alias:1 train_next use_alias:1 train_next use_alias:1 train_next""",
    "errors": """
        train_next leave:1 train_next enter train_on:1 next_forward leave:1 train_next enter train_next
        new_loop:3 train_on:3 backward_fails train_next backward_fails:1 leave:1 train_next""",
    "prefetchers": """
        new_loop:4 train_on:3 new_loop:9 train_on:2 next train_next evaluate:1 inspect train_on:1
        new_loop:11 train_on:1 next_forward state next_forward backward_of_sum optimizer_step zero_grad
        train_next next next train_next""",
    "random numbers": "new_loop:5 train_on:2 new_loop train_on:1",
    "random numbers on one rank": "new_loop:6 train_on:2 new_loop train_on:1",
}


@functools.cache
def usual(name: str) -> Loop:
    """The same function for the same program: plain runs are kept."""
    return play(operations_of(USUAL[name]))
