//! Measurements.

pub mod decode;
