import unittest

from tally.money import show, split


class Split(unittest.TestCase):
    def test_an_even_bill_is_split_evenly(self):
        self.assertEqual(split(900, 3), [300, 300, 300])

    def test_no_cent_is_lost(self):
        self.assertEqual(split(1000, 3), [334, 333, 333])

    def test_nobody_cannot_pay(self):
        with self.assertRaises(ValueError):
            split(100, 0)


class Show(unittest.TestCase):
    def test_cents_have_two_digits(self):
        self.assertEqual(show(1205), "12.05")
