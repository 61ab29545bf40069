//! Every plan covers each visible (row, token) pair exactly once, whatever the method, on random trees.

use super::*;
use crate::base::rng::Rng;
