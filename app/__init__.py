"""The dashboard. It only reads run directories, and never imports TensorFlow."""
