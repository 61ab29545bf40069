//! Measurements.

pub mod attention;
pub mod cuda;
pub mod decode;
pub mod link;
pub mod offload;
pub mod perplexity;
pub mod products;
pub mod trace;
