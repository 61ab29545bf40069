//! The CPU device.

pub mod attend;
