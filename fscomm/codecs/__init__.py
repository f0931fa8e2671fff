"""An extension: quantised communication, by the codecs of TorchRec."""
