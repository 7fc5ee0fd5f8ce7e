"""Plans models for a described cluster: the device of each layer, and the predicted speed."""
