//! Measurements.

pub mod attention;
pub mod decode;
pub mod products;
