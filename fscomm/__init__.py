"""fscomm: prioritized, overlapped embedding communication for TorchRec models, exact to the bit."""
