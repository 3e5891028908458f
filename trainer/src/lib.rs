//! Trainer: configuration, data, plan, step, checkpoints, runs, and the doctor.
//!
//! One [`step::Trainer`] is one rank. It communicates with other ranks through
//! [`collectives::Collective`], computes with [`models`], and saves its state with [`checkpoint`].

mod bit_flip;
pub mod checkpoints;
pub mod comm;
pub mod config;
pub mod data;
pub mod doctor;
pub mod failure;
pub mod fault_injection;
pub mod hugging_face;
pub mod mesh;
pub mod out_of_memory;
pub mod plan;
mod ranks;
pub mod run;
pub mod step;
pub mod tier_set;
pub mod time_limit;
pub mod timing;
