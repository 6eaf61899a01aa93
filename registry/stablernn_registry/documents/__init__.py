"""The JSON documents of a version, and the model card that is made from them."""
