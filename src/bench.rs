//! Measurements.

pub mod cuda;
pub mod decode;
