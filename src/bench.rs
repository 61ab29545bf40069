//! Measurements.

pub mod products;
