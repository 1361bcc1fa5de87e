"""Fashion-MNIST: 70,000 images of clothes, 28x28."""
