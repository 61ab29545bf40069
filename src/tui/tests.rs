//! The screen as a whole: pictures, keys, and whatever may come in.

mod behaviour;
mod fuzz;
mod pictures;
mod shared;
mod widths;
