//! Calls that had a name: the last of them are kept, so that one which is repeated, since its answer got lost, is not done again.
const std = @import("std");

pub const kept_max = 1024;
pub const name_bytes_max = 256;

pub const Request = struct { name: []const u8, sequence: u64, rows: u64, row: u64 };

pub const Requests = struct {
    /// The oldest first.
    items: std.ArrayList(Request) = .empty,

    pub fn deinit(self: *Requests, allocator: std.mem.Allocator) void {
        self.clear(allocator);
        self.items.deinit(allocator);
    }

    pub fn clear(self: *Requests, allocator: std.mem.Allocator) void {
        for (self.items.items) |one| allocator.free(one.name);
        self.items.clearRetainingCapacity();
    }

    pub fn find(self: *const Requests, name: []const u8) ?Request {
        for (self.items.items) |one| if (std.mem.eql(u8, one.name, name)) return one;
        return null;
    }

    pub fn add(self: *Requests, allocator: std.mem.Allocator, name: []const u8, sequence: u64, rows: u64, row: u64) error{OutOfMemory}!void {
        const copy = try allocator.dupe(u8, name);
        errdefer allocator.free(copy);
        try self.items.ensureUnusedCapacity(allocator, 1);
        self.add_owned(allocator, copy, sequence, rows, row);
    }

    /// These, and one more behind them where it has a name.
    pub fn with(self: *const Requests, allocator: std.mem.Allocator, one: Request) error{OutOfMemory}!Requests {
        var both: Requests = .{};
        errdefer both.deinit(allocator);
        for (self.items.items) |before| try both.add(allocator, before.name, before.sequence, before.rows, before.row);
        if (one.name.len > 0) try both.add(allocator, one.name, one.sequence, one.rows, one.row);
        return both;
    }

    /// With room made before, and a name that is its own from now on.
    pub fn add_owned(self: *Requests, allocator: std.mem.Allocator, name: []const u8, sequence: u64, rows: u64, row: u64) void {
        if (self.items.items.len == kept_max) allocator.free(self.items.orderedRemove(0).name);
        self.items.appendAssumeCapacity(.{ .name = name, .sequence = sequence, .rows = rows, .row = row });
    }
};

test "the oldest names are forgotten" {
    const allocator = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.deinit(allocator);
    var buffer: [16]u8 = undefined;
    for (0..kept_max + 5) |i| try requests.add(allocator, try std.fmt.bufPrint(&buffer, "r{d}", .{i}), i, 1, 0);
    try std.testing.expectEqual(null, requests.find("r4"));
    try std.testing.expectEqual(5, requests.find("r5").?.sequence);
    try std.testing.expectEqual(kept_max + 4, requests.find("r1028").?.sequence);
}
