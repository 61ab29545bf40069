//! Search over thoughts: the tree, the policies that decide, the evaluators that score, the controller that does.

pub mod event;
pub mod run;
pub mod tree;
