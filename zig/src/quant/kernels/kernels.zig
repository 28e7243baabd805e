//! The root of one kernel object: build.zig compiles it once per CPU level, and each compilation exports its functions
//! under its own level's name. Imports nothing from outside this folder but std.
const std = @import("std");
const level = @import("options").level;
const abi = @import("abi.zig");
const scalar = @import("scalar.zig");

comptime {
    for (std.meta.fieldNames(abi.Kernels)) |name| {
        @export(&@field(scalar, name), .{ .name = "k_" ++ level ++ "_" ++ name, .visibility = .hidden });
    }
}
