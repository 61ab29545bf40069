//! Measurements.

pub mod decode;
pub mod products;
