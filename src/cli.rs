//! The compiled CLI.
