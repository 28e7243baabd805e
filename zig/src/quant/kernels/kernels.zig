//! The root of one kernel object: build.zig compiles it once per CPU level, and each compilation exports its functions
//! under its own level's name. Imports nothing from outside this folder but std. scalar.zig is the definition.
const std = @import("std");
const level = @import("options").level;
const abi = @import("abi.zig");
const codes = @import("codes.zig");
const floats = @import("floats.zig");
const lists = @import("lists.zig");
const product = @import("product.zig");

const checksum = @import("scalar.zig").checksum; // std's is written in vectors, so compiling it per level is enough

comptime {
    for (std.meta.fieldNames(abi.Kernels)) |name| {
        const function = if (@hasDecl(codes, name))
            &@field(codes, name)
        else if (@hasDecl(floats, name))
            &@field(floats, name)
        else if (@hasDecl(lists, name))
            &@field(lists, name)
        else if (@hasDecl(product, name))
            &@field(product, name)
        else
            &@field(@This(), name);
        @export(function, .{ .name = "k_" ++ level ++ "_" ++ name, .visibility = .hidden });
    }
}
