"""The suite `networks`: what a training step costs on each data-centre network."""
