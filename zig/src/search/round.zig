//! The pages that a search wants at a step, and those that it still waits for.
const std = @import("std");
const burst_max = @import("parameters.zig").burst_max;
const assert = std.debug.assert;

pub const Round = struct {
    pages: [burst_max]u32 = undefined,
    count: u32 = 0,
    /// pages[next..count] are still to be asked for.
    next: u32 = 0,
    /// Pages that were wanted and have not arrived, of steps before as well.
    awaited: u32 = 0,

    pub fn reset(self: *Round) void {
        self.count = 0;
        self.next = 0;
        self.awaited = 0;
    }

    /// A new step: all that the one before wanted was asked for.
    pub fn begin(self: *Round) void {
        assert(self.is_asked());
        self.count = 0;
        self.next = 0;
    }

    pub fn add(self: *Round, page: u32) void {
        assert(self.next == 0);
        self.pages[self.count] = page;
        self.count += 1;
        self.awaited += 1;
    }

    pub fn contains(self: *const Round, page: u32) bool {
        return std.mem.indexOfScalar(u32, self.pages[0..self.count], page) != null;
    }

    pub fn is_asked(self: *const Round) bool {
        return self.next == self.count;
    }

    /// The page to ask for next; it stays so until `advance`.
    pub fn upcoming(self: *const Round) ?u32 {
        return if (self.is_asked()) null else self.pages[self.next];
    }

    pub fn advance(self: *Round) void {
        assert(!self.is_asked());
        self.next += 1;
    }

    pub fn arrive(self: *Round) void {
        assert(self.awaited > 0);
        self.awaited -= 1;
    }
};

test "what was wanted is asked for in order, and arrives in any" {
    var round: Round = .{};
    round.begin();
    for ([_]u32{ 7, 3, 9 }) |page| round.add(page);
    try std.testing.expect(round.contains(3) and !round.contains(4));
    for ([_]u32{ 7, 3, 9 }) |page| {
        try std.testing.expectEqual(page, round.upcoming());
        round.advance();
    }
    try std.testing.expectEqual(null, round.upcoming());
    round.arrive();
    round.begin();
    round.add(7);
    try std.testing.expectEqual(3, round.awaited);
    try std.testing.expect(!round.contains(3));
}
