//! Measurements.

pub mod attention;
