//! Checks of the promises that every backend makes, as functions over `&dyn Collective`.
//!
//! Every rank of a group calls the same function at the same time. A broken promise is a panic that
//! names it. [`run_all`] leaves the backend usable; the functions in [`failures`] that kill the
//! backend need a group of their own.

pub mod all_to_all;
pub mod buffers;
pub mod failures;
pub mod groups;
pub mod order;
pub mod point_to_point;
mod terms;
pub mod values;

use crate::Collective;
pub use terms::Terms;

/// Runs the whole suite, except for the functions that kill the backend and for those of
/// [`groups`], which need a world of 2, 4 or 8 ranks.
///
/// # Panics
/// Panics if a promise is broken.
pub fn run_all(collective: &dyn Collective, terms: &Terms) {
    values::all_reduce(collective, terms);
    values::reduce_scatter(collective, terms);
    values::all_gather(collective, terms);
    values::broadcast(collective, terms);
    values::sums_are_reproducible(collective, terms);
    values::sums_have_the_order_of_ranks(collective, terms);
    order::barrier_separates(collective, terms);
    order::outstanding_operations_overlap(collective, terms);
    order::operations_are_waited_for_when_buffers_end(collective, terms);
    order::channels_are_independent(collective, terms);
    order::the_table_of_outstanding_operations_is_full_at_its_size(collective, terms);
    buffers::operations_on_backend_buffers(collective, terms);
    buffers::ranges_complete_one_after_another(collective, terms);
    point_to_point::ring(collective, terms);
    point_to_point::tags_distinguish_messages(collective, terms);
    point_to_point::grouped_messages_overlap(collective, terms);
    all_to_all::all_to_all(collective, terms);
    failures::wrong_arguments_are_errors(collective, terms);
    // Once more: the errors above must not have damaged the backend.
    values::all_reduce(collective, terms);
    point_to_point::ring(collective, terms);
}
