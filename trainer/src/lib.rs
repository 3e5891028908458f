//! The trainer: step, optimizer, data, telemetry, record, report and the command line.
//!
//! One [`step::Trainer`] is one rank. Everything it needs to know of other ranks goes through
//! [`collectives::Collective`]; what it computes is decided by [`models`]; what survives it by
//! [`checkpoint`].

mod announce;
mod arriving;
mod assemble;
mod attempt;
mod chronicle;
pub mod cli;
pub mod communication;
pub mod config;
pub mod data;
mod durability;
mod evaluation;
mod exchange;
pub mod failure;
mod finite;
mod folder;
mod hugging_face;
pub mod inject;
mod meeting;
mod optimizer;
mod overlap;
mod persist;
pub mod phase;
mod probe;
mod profile;
pub mod record;
pub mod report;
mod run;
pub mod schedule;
mod shard;
mod shortage;
mod sizing;
mod state;
pub mod statistics;
pub mod step;
pub mod telemetry;
mod tidying;
mod vote;
mod world;
