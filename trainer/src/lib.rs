//! The trainer: step, optimizer, data, telemetry, record, report and the command line.
//!
//! One [`step::Trainer`] is one rank. It communicates with other ranks through
//! [`collectives::Collective`], computes with [`models`], and saves its state with [`checkpoint`].

mod checkpoints;
pub mod cli;
mod comm;
pub mod config;
pub mod data;
mod doctor;
pub mod failure;
pub mod fault_injection;
mod hugging_face;
pub mod out_of_memory;
mod plan;
mod ranks;
mod run;
pub mod step;
pub mod stragglers;
mod time_limit;
pub mod timing;
