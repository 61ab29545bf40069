//! Counters of the engine: what the screen shows of memory, input/output and speed, and how the worker keeps them.

use serde::{Deserialize, Serialize};

/// What the screen shows of memory, link and speed. Whatever a model cannot tell is `None`, and shown as not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    pub kv: Option<KvCounters>,
    pub io: Option<IoCounters>,
    pub link: Option<LinkCounters>,
    pub speed: Option<SpeedCounters>,
}

/// K/V memory at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCounters {
    pub pages_total: u64,
    pub pages_live: u64,
    pub pages_cached: u64,
    pub page_bytes: u64,
    /// Tokens stored in live segments, each once.
    pub tokens_stored: u64,
    /// Tokens of all live paths added up: what would be stored without sharing.
    pub tokens_logical: u64,
    pub evicted_pages: u64,
    /// Prompt tokens found in the cache, and looked up, since the start.
    pub prefix_hits: u64,
    pub prefix_lookups: u64,
}

/// Bytes attention moved since the start, counted from the plans (all layers).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounters {
    /// K/V bytes read.
    pub kv_bytes: u64,
    /// What grouping by query (Radix) would have read.
    pub radix_bytes: u64,
    pub partial_bytes: u64,
}

/// Bytes over the link between the tiers since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    pub to_device_bytes: u64,
    pub to_host_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedCounters {
    pub steps: u64,
    pub rows: u64,
    pub sampled: u64,
    /// Seconds spent in steps, and what they went to.
    pub step_seconds: f64,
    pub attention_seconds: f64,
    pub products_seconds: f64,
    pub plan_seconds: f64,
    /// Tokens a second over the last moments (rows forwarded, prompt included).
    pub tokens_per_second: f64,
}

