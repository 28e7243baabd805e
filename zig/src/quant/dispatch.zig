//! Picks the kernels of the CPU level found at run time.
const std = @import("std");
const cpu = @import("base").cpu;
const abi = @import("kernels/abi.zig");

pub const Kernels = abi.Kernels;

const per_level = blk: {
    const levels = std.meta.fields(cpu.Level);
    var tables: [levels.len]Kernels = undefined;
    for (levels, &tables) |level, *table| {
        for (std.meta.fields(Kernels)) |function| {
            @field(table, function.name) = @extern(function.type, .{ .name = "k_" ++ level.name ++ "_" ++ function.name });
        }
    }
    break :blk tables;
};

/// The kernels to use. Cheap, but take it once outside of loops.
pub fn kernels() *const Kernels {
    return &per_level[@intFromEnum(cpu.current())];
}

/// The kernels of one level, for tests. Call only what `cpu.detect` allows.
pub fn kernels_of(level: cpu.Level) *const Kernels {
    return &per_level[@intFromEnum(level)];
}
