"""NumPy's .npy and .npz, and a format made of them."""
