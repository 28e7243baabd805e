//! A query that reads nothing needs no device, and so no worker: where all pages of its parts are in memory, the thread that
//! calls answers it. To hand it to a worker and to be woken takes as long as the query itself.
const std = @import("std");
const base = @import("base");
const company = @import("company.zig");
const job_file = @import("job.zig");
const Job = job_file.Job;
const parameters = @import("parameters.zig");
const File = @import("search_state.zig").File;
const Shared = @import("shared.zig").Shared;
const Slot = @import("slot.zig").Slot;

/// Places for callers that answer at the same time; more go to the workers.
const Places = u64;

pub const Direct = struct {
    /// A bit for each place that nobody has.
    free: std.atomic.Value(Places),
    /// Of a part's legs the one of the first place.
    first_leg: usize,
    /// Of each place, room for the hits of a delta.
    hits: []job_file.Delta.Hit,

    pub fn count_of(threads: u32) u32 {
        return @min(threads, @bitSizeOf(Places));
    }

    pub fn init(allocator: std.mem.Allocator, threads: u32, first_leg: usize) error{OutOfMemory}!Direct {
        const places = count_of(threads);
        return .{
            .free = .init(std.math.boolMask(Places, true) >> @intCast(@bitSizeOf(Places) - places)),
            .first_leg = first_leg,
            .hits = try base.alloc_untouched(allocator, job_file.Delta.Hit, places * parameters.k_max),
        };
    }

    pub fn deinit(self: *Direct, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.hits);
    }

    /// Whether the job is of one query that no part reads anything for.
    pub fn may_answer(job: *const Job) bool {
        if (job.count != 1) return false;
        for (job.parts) |*one| {
            const shared = one.part.shared;
            if (!is_complete(shared, .pages)) return false;
            if (one.parameters.exact and shared.reader.vectors != null and !is_complete(shared, .vectors)) return false;
        }
        return true;
    }

    fn is_complete(shared: *const Shared, file: File) bool {
        const cache = shared.page_cache_of(@intFromEnum(file)) orelse return false;
        return cache.is_complete();
    }

    /// Answers the job; false where the workers have to.
    pub fn answer(self: *Direct, job: *Job) bool {
        const place = self.take() orelse return false;
        defer _ = self.free.fetchOr(@as(Places, 1) << @intCast(place), .release);
        const legs: company.Legs = .{ .parts = job.parts, .place = self.first_leg + place };
        var slot: Slot = .{ .job = job, .begin_us = base.nowMicros() };
        slot.start(legs);
        const is_answered = run(&slot, legs);
        if (is_answered) {
            slot.write_answer(legs, self.hits[place * parameters.k_max ..][0..parameters.k_max]);
            job.remaining.store(1, .monotonic);
            _ = job.finish_query(slot.outcome, slot.page, slot.file);
        }
        for (0..legs.count()) |i| legs.at(i).search.end();
        return is_answered;
    }

    fn take(self: *Direct) ?usize {
        var free = self.free.load(.monotonic);
        while (free != 0) {
            free = self.free.cmpxchgWeak(free, free & (free - 1), .acquire, .monotonic) orelse return @ctz(free);
        }
        return null;
    }

    /// False where a page is not in memory.
    fn run(slot: *Slot, legs: company.Legs) bool {
        while (true) {
            slot.check_time(base.nowMicros());
            if (slot.outcome != .ok) break;
            const want = company.step(legs, slot.job.k()) catch {
                slot.outcome = .corrupt;
                break;
            };
            if (want == .done) break;
            for (0..legs.count()) |i| {
                const leg = legs.at(i);
                const round = &leg.search.round;
                while (round.upcoming()) |page| if (!slot.use_cached(leg, leg.search.file(), page)) return false;
            }
            if (legs.count() == 1) legs.at(0).search.cost.rounds -|= 1;
        }
        return true;
    }
};
