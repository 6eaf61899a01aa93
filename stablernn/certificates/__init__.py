"""Certificates: properties of a trained model that are proved from its weights."""
