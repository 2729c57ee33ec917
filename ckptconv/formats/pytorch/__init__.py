"""The PyTorch family: zip archives, the legacy stream, TorchScript; read and written without torch."""
