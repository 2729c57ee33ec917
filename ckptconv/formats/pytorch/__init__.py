"""The PyTorch family: zip archives, the legacy stream and tar, TorchScript; read and written without torch."""
