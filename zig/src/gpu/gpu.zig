//! The GPU room: kernels over codes and links in device memory, and the structs that they take.
pub const layout = @import("layout.zig");
pub const prepare = @import("prepare.zig");
/// Kernels on the host.
pub const host = @import("host.zig");

test {
    _ = layout;
    _ = @import("kernels_test.zig");
}
