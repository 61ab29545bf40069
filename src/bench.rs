//! Measurements.

pub mod attention;
pub mod cuda;
pub mod decode;
pub mod products;
