//! Whether training goes well, beside whether it is fast: how large weights and updates are, and
//! losses that stand out.

mod loss_watch;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use loss_watch::{LossWatch, Observed};
pub(crate) use update::UpdateHealth;
