"""TensorFlow's formats: V2 checkpoints (bundle.py), V1 checkpoints (v1.py), graphs and SavedModels (graph.py)."""
