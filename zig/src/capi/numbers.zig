//! The numbers that velo.h gives to what other rooms know by name.
const std = @import("std");
const common = @import("common.zig");

/// As velo_plan.
pub const Plan = enum(i32) { auto = 0, links_in_memory = 1, links_on_disk = 2, pages = 3 };
/// As velo_io.
pub const Io = enum(i32) { auto = 0, uring = 1, threads = 2, simulated = 3 };
/// As velo_search_options.filter_plan.
pub const FilterPlan = enum(i32) { auto = 0, late = 1, gate = 3, scan = 4 };

/// The number of a value, found by its name.
pub fn number_of(comptime Numbers: type, value: anytype) @typeInfo(Numbers).@"enum".tag_type {
    return switch (value) {
        inline else => |one| @intFromEnum(@field(Numbers, @tagName(one))),
    };
}

/// The value of type `T` that has the name of this number.
pub fn value_of(comptime T: type, comptime Numbers: type, comptime argument: []const u8, number: @typeInfo(Numbers).@"enum".tag_type) error{Reported}!T {
    const known = std.enums.fromInt(Numbers, number) orelse
        return common.report(.invalid_argument, .{ .argument = argument }, argument ++ " {d} is unknown", .{number});
    if (T == Numbers) return known;
    return switch (known) {
        inline else => |one| @field(T, @tagName(one)),
    };
}

test "numbers and values find each other by name, and other numbers are errors" {
    const Fruit = enum { pear, apple };
    const Numbers = enum(i32) { apple = 4, pear = 7 };
    for (std.enums.values(Fruit)) |fruit| try std.testing.expectEqual(fruit, value_of(Fruit, Numbers, "fruit", number_of(Numbers, fruit)));
    try std.testing.expectEqual(7, number_of(Numbers, Fruit.pear));
    try std.testing.expectError(error.Reported, value_of(Fruit, Numbers, "fruit", 5));
}
