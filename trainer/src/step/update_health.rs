//! Size of the weights and of their updates.

use models::ops::update_norm::UpdateSquares;

/// Health of the weights that a step began with, and so computed its loss with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct UpdateHealth {
    /// Euclidean norm of all parameters.
    pub(crate) parameter_norm: f64,
    /// Norm of the update that produced the parameters, relative to their norm.
    pub(crate) update_ratio: f64,
}

impl UpdateHealth {
    /// Computes the health from sums over all parameters; `None` unless both figures are finite.
    pub(crate) fn of(squares: UpdateSquares) -> Option<Self> {
        let parameter_norm = squares.weights.sqrt();
        let update_ratio = squares.update.sqrt() / parameter_norm;
        let is_finite = parameter_norm.is_finite() && update_ratio.is_finite();
        is_finite.then_some(Self { parameter_norm, update_ratio })
    }
}
