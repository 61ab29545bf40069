//! Attention plans over the token tree.
