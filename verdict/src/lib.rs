//! Evaluation of records: reports, comparisons, baselines, golden losses, repeats of a run.
//!
//! This crate reads records and knows nothing of the trainer that wrote them.

mod base;
pub mod baseline;
pub mod compare;
mod error;
pub mod gap;
pub mod golden;
mod page;
pub mod published;
pub mod repeats;
pub mod report;

pub use base::Base;
pub use error::{Error, Result};
