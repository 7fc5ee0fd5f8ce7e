"""Plans models for a described cluster: where layers go, and how fast the model runs there."""
