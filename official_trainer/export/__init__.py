"""Models that leave the run: SavedModels that serve, and files of weights. Import the submodules."""
