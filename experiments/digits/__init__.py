"""Handwritten digits of scikit-learn: 1,797 real 8x8 images that need no download."""
