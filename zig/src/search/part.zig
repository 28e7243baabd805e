//! An open index as workers see it: what its queries share, its files, and a leg for every slot of every worker. A query over
//! several parts has a leg in each of them.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const Search = @import("search_state.zig").Search;
const Shared = @import("shared.zig").Shared;

/// The search of one part by one query.
pub const Leg = struct {
    search: Search,
    /// Pages that it waits for, whoever asked for them first.
    in_flight: u32 = 0,
    /// Something arrived since its last step, or it had none yet.
    due: bool = false,
    /// It wants nothing more; pages that may hold an answer can still be on their way.
    ended: bool = false,

    /// Of its pages all have to be there before it goes on, so that its answer does not depend on which came first.
    pub fn waits_for_all(self: *const Leg) bool {
        return self.search.shared.plan != .links_on_disk or switch (self.search.state) {
            .coded, .rescore, .every => true,
            else => false,
        };
    }
};

pub const Part = struct {
    shared: *const Shared,
    /// pages.bin and vectors.bin by descriptor; null: the files that the devices of the workers were opened for.
    files: [io.file_count]?std.posix.fd_t,
    /// Tells its pages from those of other parts of the same workers.
    number: u31,
    /// Of the first worker's slots, then those of the second, and so on; then of callers that answer their own queries.
    legs: []Leg,
    /// Of the legs: pages of its own, which are nobody's before. Memory that others freed would be in use for good, though most
    /// legs never touch most of theirs.
    pages: std.heap.ArenaAllocator,
    /// It is taken away: its queries end.
    closing: std.atomic.Value(bool) = .init(false),
    /// Calls under way.
    users: std.atomic.Value(u32) = .init(0),

    pub fn init(shared: *const Shared, files: [io.file_count]?std.posix.fd_t, number: u31, leg_count: usize) error{OutOfMemory}!Part {
        var pages: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
        errdefer pages.deinit();
        const legs = try base.alloc_untouched(pages.allocator(), Leg, leg_count);
        for (legs) |*leg| leg.* = .{ .search = try Search.init(pages.allocator(), shared) };
        return .{ .shared = shared, .files = files, .number = number, .legs = legs, .pages = pages };
    }

    /// No call is under way.
    pub fn deinit(self: *Part) void {
        std.debug.assert(self.users.load(.acquire) == 0);
        self.pages.deinit();
    }

    pub fn memory_bytes(self: *const Part) u64 {
        return self.legs.len * @sizeOf(Leg);
    }

    /// A call begins, unless the part is being taken away; `leave` ends it.
    pub fn enter(self: *Part) bool {
        _ = self.users.fetchAdd(1, .seq_cst);
        if (!self.closing.load(.seq_cst)) return true;
        self.leave();
        return false;
    }

    pub fn leave(self: *Part) void {
        _ = self.users.fetchSub(1, .seq_cst);
    }

    /// Ends its calls and waits for that.
    pub fn close(self: *Part) void {
        self.closing.store(true, .seq_cst);
        while (self.users.load(.seq_cst) > 0) std.Thread.sleep(50 * std.time.ns_per_us);
    }
};
