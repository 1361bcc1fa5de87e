"""The built-in experiments. Import name: `official_trainer.experiments`."""
