"""DynamicsReport dynamics: Jacobian spectra, Lyapunov exponents and gradients along real sequences."""
