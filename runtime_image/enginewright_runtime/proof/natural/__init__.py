"""Natural golden inputs: noise leaves most outputs of a trained model where they are, and proves little of them."""
