//! What every backend promises, as functions that check it over `&dyn Collective`.
//!
//! Every rank of a group calls the same function at the same time. A broken promise is a panic that
//! says which. [`run_all`] leaves the backend usable; the functions in [`failures`] that end with
//! its death need a group of their own.

pub mod buffers;
pub mod failures;
pub mod order;
pub mod point_to_point;
pub mod values;

use std::time::{Duration, Instant};

use crate::{Collective, Error};

/// What the suite needs to know about a backend.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The backend's chunk limit in elements: some buffers are longer.
    pub chunk_elements_max: usize,
    /// Patience of every operation.
    pub patience: Duration,
    /// The node of each rank, by any numbers. Empty: all are on one, or each is alone.
    pub nodes: &'static [usize],
}

impl Terms {
    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// Lengths worth trying: none, one, odd, exactly one chunk, several chunks and a rest.
    fn lens(&self) -> [usize; 5] {
        let chunk = self.chunk_elements_max;
        [0, 1, 7, chunk, 3 * chunk + 17]
    }
}

/// The whole suite, except for what kills the backend.
///
/// # Panics
/// When a promise is broken.
pub fn run_all(collective: &dyn Collective, terms: &Terms) {
    values::all_reduce(collective, terms);
    values::reduce_scatter(collective, terms);
    values::all_gather(collective, terms);
    values::broadcast(collective, terms);
    values::sums_are_reproducible(collective, terms);
    values::sums_have_the_order_of_ranks(collective, terms);
    order::barrier_separates(collective, terms);
    order::outstanding_operations_overlap(collective, terms);
    order::forgotten_operations_are_waited_for(collective, terms);
    order::channels_are_independent(collective, terms);
    order::the_table_has_its_size(collective, terms);
    buffers::are_like_any_memory(collective, terms);
    buffers::parts_come_one_after_another(collective, terms);
    point_to_point::ring(collective, terms);
    point_to_point::tags_tell_messages_apart(collective, terms);
    failures::wrong_arguments_are_errors(collective, terms);
    // After the errors above: they must not have hurt the backend.
    values::all_reduce(collective, terms);
}

/// The value of a result that must be a success.
fn good<T>(collective: &dyn Collective, what: &str, result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| {
        panic!("{what} on rank {} ({}): {error}", collective.rank(), collective.backend())
    })
}

/// What rank `rank` puts at `index`: small integers, so that sums are exact.
fn value(rank: usize, index: usize) -> u8 {
    ((index * 7 + rank * 3) % 31) as u8
}

/// A rank's buffer.
fn filled<E: From<u8>>(rank: usize, len: usize) -> Vec<E> {
    (0..len).map(|index| E::from(value(rank, index))).collect()
}
